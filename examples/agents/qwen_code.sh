# @qwen-code/qwen-code@0.24.4
# call: <tool_call>{"name": "run_shell_command", "arguments": {"command": "cat note.txt", "is_background": false}}</tool_call>
export OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none OPENAI_MODEL=smollm2
qwen --auth-type openai --yolo -p "What does note.txt say?" | grep "The note says so."
