# @openai/codex@0.171.0
# call: <tool_call>{"name": "exec_command", "arguments": {"cmd": "cat note.txt"}}</tool_call>
mkdir ~/.codex && cat > ~/.codex/config.toml <<END
model = "smollm2"
model_provider = "draftwood"

[model_providers.draftwood]
name = "Draftwood"
base_url = "http://127.0.0.1:8000/v1"
wire_api = "responses"
END
codex exec --json --skip-git-repo-check -s danger-full-access "What does note.txt say?" | grep "The note says so."
