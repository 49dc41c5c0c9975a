import sys
from tests import conftest
from tests.malformed import harness, templates
import time
t=time.time()
with templates.quick():
    print(templates.template("rows"), time.time()-t)
    import collections
    t=time.time()
    d=str(templates.template("rows"))
    a=[x.replace("DIR",d) for x in templates.CONFIG]
    print(harness.run("train",a), time.time()-t)
    t=time.time()
    print(harness.run("train",[*a,"--config.train.foo=1"]), time.time()-t)
    print(harness.run("train",[*a,"--config.train.num_steps=abc"]), time.time()-t)
    print(harness.run("train",["--workdir=/tmp/x"]), time.time()-t)
    print(harness.run("train",["--config=nowhere.py", "--workdir=/tmp/x"]), time.time()-t)
    print(harness.run("train",["--config=configs/quickstart.py:bla", "--workdir=/tmp/x"]), time.time()-t)
    print(harness.run("train",["--config=configs/quickstart.py","--config.corpus.root=gs://b/x", "--workdir=/tmp/x"]), time.time()-t)
    print(harness.run("train",["--config=configs/quickstart.py","--bla=gs://b/x", "--workdir=/tmp/x"]), time.time()-t)
