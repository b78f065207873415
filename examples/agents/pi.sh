# @earendil-works/pi-coding-agent@1.6.0 node@22.22.0
# call: <tool_call>{"name": "read", "arguments": {"path": "note.txt"}}</tool_call>
mkdir -p ~/.pi/agent && cat > ~/.pi/agent/models.json <<END
{"providers": {"draftwood": {
  "baseUrl": "http://127.0.0.1:8000/v1", "api": "openai-completions", "apiKey": "none", "models": [{"id": "smollm2"}]
}}}
END
pi --provider draftwood --model smollm2 -p "What does note.txt say?" | grep "The note says so."
