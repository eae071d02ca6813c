/* What a score of attention is, where its reference and its kernels must agree. Plain C that nvcc takes, too. */
#ifndef OP_SCORES_H
#define OP_SCORES_H

/* A bias of so much or less is the score, whatever q and k hold: beside it no product of any use is left in fp32. Lowest numbers of formats that writers of masks use lie below. */
#define OP_ATTENTION_HIDES (-1e30f)

#endif
