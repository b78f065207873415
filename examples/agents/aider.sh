# aider-chat==0.86.2
cat > .aider.conf.yml <<END
model: openai/smollm2
openai-api-base: http://127.0.0.1:8000/v1
openai-api-key: none
END
aider --yes-always --no-git --no-check-update --no-show-model-warnings --message "What does note.txt say?" note.txt | grep "The note says so."
