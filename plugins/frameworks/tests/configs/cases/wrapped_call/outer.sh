# Written for this test: a script that calls another with arguments and an environment
export SEQ=4096
for SIZE in 7B; do
  MBS=2 bash inner.sh 4 $SIZE
done
