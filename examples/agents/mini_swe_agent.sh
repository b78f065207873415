# mini-swe-agent==2.4.6
# call: <tool_call>{"name": "bash", "arguments": {"command": "cat note.txt"}}</tool_call>
# last: <tool_call>{"name": "bash", "arguments": {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo The note says so."}}</tool_call>
export OPENAI_API_BASE=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors
mini --model openai/smollm2 --yolo --exit-immediately --output turn.json --task "What does note.txt say?"
grep "The note says so." turn.json
