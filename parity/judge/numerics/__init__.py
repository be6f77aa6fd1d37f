"""The statistics of the judge: rounding, samples, and what a site is asked about them.

reading      log-probabilities of given tokens, by plain transformers and by a loaded engine
vllm_reading the same by vLLM itself, for code on vLLM whose engine is gone
own_texts    texts of our own
made         further tokens, where a site's goldens hold too few
references   what plain transformers reads, each row once
cache        the same, kept between checks
vllm_weights whether vLLM runs the checkpoint's weights
probes       one thing in a loaded model moved, for the directions that faults have
errors       what three paths read, as errors in nats of logit
estimates    statistics of these errors, each with its interval and its margin
referee      the verdict: rounding, a fault, or too few tokens
noise        whether rounding of a measured size explains one step, or one number

processed    logits after the settings of sampling, and whether they can be computed
surprise     whether samples follow the distribution that their settings declare
seeds        which samples share random numbers, and which ids a seed owes
samples      which rows of a case are asked that, and the verdict

weights      what answered a golden's row, and where it is
numbers      numbers among the values: how far apart, and what was rounded off
together     all numbers of a site: which way they move, and means
questions    which cases hang on the numerics of their site
golden_rows  a golden's rows as they are read
groups       a site's rows on one checkpoint, and what each path reads of them
answers      what a case becomes by the referee's verdict
summary      what reports show
"""
