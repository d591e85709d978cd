TP=$1
PP=$2
MBS=1
GBS=64
parallel_options=" --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --micro-batch-size ${MBS} --global-batch-size ${GBS} --context-parallel-size 2"
