# @anthropic-ai/claude-code@2.1.332
# call: <tool_call>{"name": "Bash", "arguments": {"command": "cat note.txt"}}</tool_call>
export ANTHROPIC_BASE_URL=http://127.0.0.1:8000 ANTHROPIC_AUTH_TOKEN=none
claude --model smollm2 --allowedTools Bash -p "What does note.txt say?" | grep "The note says so."
