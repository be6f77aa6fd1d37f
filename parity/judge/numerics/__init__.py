"""The statistics of the judge: rounding, samples, and what a site is asked about them.

reading     log-probabilities of given tokens, by plain transformers and by a loaded engine
errors      what three paths read, as errors in nats of logit
estimates   statistics of these errors, each with its interval and its margin
referee     the verdict: rounding, a fault, or too few tokens
noise       whether rounding of a measured size explains one step, or one number
processed   logits after the settings of sampling, and whether they can be computed
surprise    whether samples follow the distribution that their settings declare
samples     which rows of a case are asked that, and the verdict
questions   which cases hang on the numerics of their site
answers     what they become by the referee's verdict
choices     the size of errors from greedy answers alone, without an engine
"""
