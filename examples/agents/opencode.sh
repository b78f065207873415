# opencode-ai@1.18.33
# call: <tool_call>{"name": "bash", "arguments": {"command": "cat note.txt", "description": "Read the note"}}</tool_call>
cat > opencode.json <<END
{
  "$schema": "https://opencode.ai/config.json",
  "provider": {
    "draftwood": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "Draftwood",
      "options": {"baseURL": "http://127.0.0.1:8000/v1"},
      "models": {"smollm2": {"name": "SmolLM2", "limit": {"context": 131072, "output": 4096}}}
    }
  },
  "model": "draftwood/smollm2"
}
END
opencode run "What does note.txt say?" | grep "The note says so."
