# guidellm==0.8.1
echo '{"prompt": "What is the capital of France?"}' > prompts.jsonl

# ---- plain ----
guidellm run --backend kind=openai_http,target=http://127.0.0.1:8000,model=smollm2 --data kind=json_file,path=prompts.jsonl \
  --profile kind=synchronous --constraint kind=max_requests,count=1 --output kind=console
