# aiperf==0.13.0
echo '{"text": "What is the capital of France?"}' > prompts.jsonl

# ---- plain ----
aiperf profile --model smollm2 --url http://127.0.0.1:8000 --endpoint-type chat --streaming --request-count 1 \
  --tokenizer builtin --input-file prompts.jsonl --custom-dataset-type single_turn --ui none
