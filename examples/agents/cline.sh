# cline@3.0.65
# call: <tool_call>{"name": "run_commands", "arguments": {"commands": ["cat note.txt"]}}</tool_call>
cline auth -p openai-compatible -k none -m smollm2 -b http://127.0.0.1:8000/v1
cline "What does note.txt say?" | grep "The note says so."
