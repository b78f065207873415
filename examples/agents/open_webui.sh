# open-webui==0.12.4 torch==2.13.0
export OPENAI_API_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none ENABLE_OLLAMA_API=false
export WEBUI_AUTH=false OFFLINE_MODE=true DATA_DIR=$HOME/.open-webui
open-webui serve --host 127.0.0.1 --port 3000 &
trap "kill $!" EXIT
ask() { curl -sf -H "Authorization: Bearer $token" -H "Content-Type: application/json" http://127.0.0.1:3000/"$@"; }
until ask health; do sleep 1; done
token=$(ask api/v1/auths/signin -d '{"email": "", "password": ""}' | sed 's/.*"token":"\([^"]*\)".*/\1/')
ask api/models | grep '"smollm2"'
chat='{"model": "smollm2", "messages": [{"role": "user", "content": "What does note.txt say? '$(cat note.txt)'"}]'
ask api/chat/completions -d "$chat, \"stream\": true}" | grep "data: \[DONE\]"
ask api/chat/completions -d "$chat}" | grep "The note says so."
