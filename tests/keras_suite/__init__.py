"""Keras' own tests run against mp_core: `make keras-tests KERAS=FOLDER`.

FOLDER is a checkout of Keras or its unpacked source archive. Its test files are run as they are. Their imports of Keras
find mp_core's objects of the same names (`modules.py`), and a few functions that only tests need (`stand_ins.py`). What
fails is either covered by a row of `differences.py`, which says why, or a defect: then the command fails.
"""
