"""Holds the examples at the end of each command's help."""

STAGEMESH = """\
Examples:

    stagemesh demo                          run a mesh once and show what it does
    stagemesh serve smollm2 --pp 2          serve SmolLM2 in two pipeline stages
    stagemesh infer "Why is the sky blue?"  send a prompt, from another terminal

Every option has an environment variable, such as STAGEMESH_PP for --pp; the command line overrides
it."""

SERVE = """\
Examples:

    stagemesh serve smollm2 --pp 3
    stagemesh serve ./my-model --layers 3,20,7
    stagemesh serve ./my-model.gguf --pp 2 --kv-memory 2GiB --max-model-len 4096
    stagemesh serve smollm2 --grpc 0.0.0.0:50050 --http 0.0.0.0:8000 --api-keys keys.toml

APIs that other machines can reach require API keys, which stagemesh keys add creates."""

INFER = """\
Examples:

    stagemesh infer "Why is the sky blue?"
    stagemesh infer "Tell me a story" --temperature 0.8 --top-p 0.95 --seed 7
    stagemesh infer --raw "Once upon a time" --max-tokens 20 --stats
    stagemesh infer --raw "Q: Why?\\nA:" --stop "Q:" --repetition-penalty 1.1
    cat question.txt | stagemesh infer - --target 127.0.0.1:50050"""

CHAT = """\
Examples:

    stagemesh chat
    stagemesh chat --system "You answer in one sentence." --temperature 0.7 --max-tokens 200"""

STATUS = """\
Examples:

    stagemesh status
    stagemesh status --json | jq .num_running"""

TOP = """\
Examples:

    stagemesh top
    stagemesh top --target 10.0.0.1:50050 --interval 5"""

DEMO = """\
Examples:

    stagemesh demo
    stagemesh demo --pp 3 --prompt "What is a pipeline?\""""

PREPARE = """\
Examples:

    stagemesh prepare smollm2
    stagemesh prepare HuggingFaceTB/SmolLM2-360M-Instruct"""

COORDINATOR = """\
Examples, with the workers on two other machines:

    stagemesh coordinator smollm2 --pp 2 --mesh 0.0.0.0:50051 --tls-dir certs/a
    stagemesh worker --coordinator 10.0.0.1:50051 --listen 10.0.0.2:50100 --tls-dir certs/b
    stagemesh worker --coordinator 10.0.0.1:50051 --listen 10.0.0.3:50100 --tls-dir certs/c"""

WORKER = """\
Examples:

    stagemesh worker --coordinator 127.0.0.1:50051
    stagemesh worker --coordinator 10.0.0.1:50051 --listen 10.0.0.2:50100 --tls-dir certs/b
    stagemesh worker --coordinator 127.0.0.1:50051 --model-path /models/smollm2 --threads 8"""

DRAIN = """\
Examples:

    stagemesh drain 10.0.0.2:50100          one worker, before maintenance of its machine
    stagemesh drain 1 --grace 60            all workers of replica 1
    stagemesh drain 1 --target 10.0.0.1:50051 --tls-dir certs/admin"""

HEALTH = """\
Examples:

    stagemesh health                        whether the API on this machine is alive
    stagemesh health --ready                whether it serves requests
    stagemesh health --ready 10.0.0.2:50100 --tls-dir certs/admin
                                            whether that worker is in a mesh with TLS"""

FAULT_PROXY = """\
Examples, with a worker behind a slow link that breaks after 1 MiB:

    stagemesh fault-proxy --listen 127.0.0.1:6000 --to 127.0.0.1:5000 --delay 0.1 --drop-after 1MiB
    stagemesh worker --coordinator 127.0.0.1:50051 --listen 127.0.0.1:5000 \\
      --advertise 127.0.0.1:6000"""

CERTS = """\
Examples, for a mesh of three machines and an operator:

    stagemesh certs certs --node a --role coordinator --host mesh.example.org
    stagemesh certs certs --node b --role worker
    stagemesh certs certs --node c --role worker
    stagemesh certs certs --node admin --role client
    stagemesh certs certs --node b --role worker --renew"""

BENCH = """\
Examples:

    stagemesh bench serve --num-prompts 200 --max-concurrency 32 --ignore-eos
    stagemesh bench serve --request-rate 4 --burstiness 0.5 --goodput ttft:500 tpot:50
    stagemesh bench serve --api http --prompts questions.jsonl --save run.json --plot run.png"""

KEYS = """\
Examples:

    stagemesh keys add alice --api-keys keys.toml
    stagemesh keys add bob --api-keys keys.toml --max-in-flight 8 --tokens-per-minute 60000"""

SIMULATE = """\
Examples:

    stagemesh simulate
    stagemesh simulate --scenario slow-stage --find-goodput
    stagemesh simulate --plan 10,30,40 --hardware llama2-70b/a100-80gb/8
    stagemesh simulate --trace azure.csv --rate 5 --policy adaptive --plot timeline.png"""


NODE = """\
Examples, on a machine with GPUs and on one without:

    stagemesh node --coordinator 10.0.0.1:50051 --listen 0.0.0.0:50100 --tls-dir certs/d
    stagemesh node --coordinator 127.0.0.1:50051 --workers 2"""
