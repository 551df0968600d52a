/* gac: all of the library.
 *
 * GAC says which sizes of a language model a GPU serves badly, what that costs,
 * chooses better ones and applies them without changing what the model computes.
 * One header per room; each can be included by itself:
 *
 *   base        status, errors, files, JSON, progress
 *   op          dtypes and the shapes of operator calls
 *   checkpoint  tensors on disk: reading, writing, converting
 *   contract    what one GPU asks of sizes, and predicted times
 *   model       a checkpoint's dimensions
 *   plan        which size each dimension should have
 *   inspect     a model judged by a contract
 *   repair      applying sizes, undoing and verifying that
 *   tokenizer   text to tokens and back
 *   engine      running a model
 *   compress    making a smaller model
 *   report      one page of figures and tables from results
 *   device, timing, probe   measuring a GPU and writing its contract
 *
 * examples/ has programs that use them.
 *
 * Errors. What can fail returns a gac_status and takes a gac_error *err last,
 * which may be NULL and gets one line. Nothing prints, exits or aborts. NULL where
 * an object or a result belongs, negative sizes and enum values out of range are
 * GAC_USAGE. Functions that only look something up want an object that exists.
 *
 * Ownership. T **out: the caller owns *out, and nothing is there after a failure.
 * A pointer that is returned is borrowed, as long as what it was asked of lives.
 * Every free, close and dispose takes NULL.
 *
 * Options. Start from the structure's _INIT macro and set what differs. A structure
 * that is all zero either works or is refused with GAC_USAGE. Where options may be
 * NULL, that means _INIT.
 *
 * Threads. One object is used by one thread at a time, unless its header says that
 * it may be shared. The library has no settings that are global.
 *
 * ABI. Before 1.0, releases with the same minor version (0.1.x) have the same ABI;
 * with another minor version anything may differ. The soname has both numbers:
 * libgac.so.0.1. From 1.0 on it has the major version, which then stands for the
 * ABI. Within one ABI functions may be added, and nothing else changes. When the
 * ABI changes, structures grow at their end only, so that a program that starts
 * from _INIT macros and names the members it sets compiles again as it is. */
#ifndef GAC_GAC_H
#define GAC_GAC_H

#include <gac/base.h>
#include <gac/checkpoint.h>
#include <gac/compress.h>
#include <gac/contract.h>
#include <gac/device.h>
#include <gac/engine.h>
#include <gac/inspect.h>
#include <gac/model.h>
#include <gac/op.h>
#include <gac/plan.h>
#include <gac/probe.h>
#include <gac/repair.h>
#include <gac/report.h>
#include <gac/timing.h>
#include <gac/tokenizer.h>

#endif
