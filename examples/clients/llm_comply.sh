# llm-comply==0.5.0
comply() { llm-comply -u http://127.0.0.1:8000/v1 -k none -m smollm2 --format "$@"; }
set -e
# ---- plain ----
comply open-responses -f basic-response,system-prompt,multi-turn,assistant-phase,response-output-phase-schema
comply openai-chat -f chat-basic-response,chat-system-prompt,chat-multi-turn
comply anthropic -f anth-basic-response,anth-system-prompt,anth-multi-turn
# ---- stream ----
comply open-responses -f streaming-response,streaming-usage
comply openai-chat -f chat-streaming-response,chat-streaming-usage
comply anthropic -f anth-streaming-response,anth-streaming-usage
# ---- tools ----
comply open-responses -f tool-calling
comply openai-chat -f chat-tool-calling
comply anthropic -f anth-tool-calling
