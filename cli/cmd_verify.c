#include "plan_args.h"

static const char help[] =
    "usage: gac verify ORIGINAL REPAIRED\n"
    "\n"
    "Checks that a repaired checkpoint is its original with nothing but zeros added, tensor by\n"
    "tensor and byte by byte, and that its config states the sizes it has. Exits with 5 and\n"
    "names the first difference when that does not hold.\n"
    "\n"
    "  --json, -q, -v, --help\n"
    "\n"
    "example: gac verify ./llama-svd ./llama-svd-fit\n";

static gac_status report(cli *c, const gac_verification *v, bool ok)
{
    if (c->json) {
        json_t *result = gac_json_result("gac.verify/1", c->argc, c->argv);
        json_t *body = json_pack(
            "{s:b, s:b, s:b, s:b, s:b, s:i, s:i, s:{s:b}, s:b, s:s}", "lossless", v->lossless,
            "pads_zero", v->pads_zero, "config_ok", v->config_ok, "same_tensors", v->same_tensors,
            "rescaled", v->rescaled, "n_tensors", v->n_tensors, "n_dims_changed", v->n_dims_changed,
            "forward", "ran", false, "ok", ok, "difference", v->difference);
        json_object_update(result, body);
        json_decref(body);
        gac_status status = gac_json_print(stdout, result, &c->error);
        json_decref(result);
        return status;
    }
    if (v->lossless)
        printf("lossless      yes: without what was put in, %d tensors have their original bytes\n",
               v->n_tensors);
    else
        printf("lossless      NO\n");
    printf("pads zero     %s\n", v->pads_zero ? "yes" : "NO");
    printf("same tensors  %s\n", v->same_tensors ? "yes" : "NO");
    printf("config        %s\n", v->config_ok ? "states the sizes" : "DOES NOT state the sizes");
    printf("dimensions    %d changed%s\n", v->n_dims_changed,
           v->rescaled ? "; some tensors scaled, their originals kept" : "");
    return GAC_OK;
}

static gac_status compare(cli *c, char **paths)
{
    gac_checkpoint *checkpoints[2] = { NULL, NULL };
    gac_model *models[2] = { NULL, NULL };
    gac_verification v;
    gac_status status = GAC_OK;
    for (int i = 0; i < 2 && status == GAC_OK; i++)
        status = cli_open_model(c, paths[i], &checkpoints[i], &models[i]);
    if (status == GAC_OK)
        status = gac_repair_verify(checkpoints[0], models[0], checkpoints[1], models[1],
                                   c->progress, &v, &c->error);
    bool ok = status == GAC_OK && v.lossless && v.pads_zero && v.config_ok && v.same_tensors;
    if (status == GAC_OK)
        status = report(c, &v, ok);
    if (status == GAC_OK && !ok)
        status = gac_error_set(&c->error, GAC_CHECK, "%s", v.difference);
    for (int i = 0; i < 2; i++) {
        gac_model_free(models[i]);
        gac_checkpoint_close(checkpoints[i]);
    }
    return status;
}

static gac_status run(cli *c, int argc, char **argv)
{
    static const struct option options[] = { CLI_COMMON_OPTIONS };
    bool done = false;
    if (cli_next_option(c, &cmd_verify, argc, argv, options, &done) != -1)
        return done ? GAC_OK : c->error.status;
    if (argc - optind != 2)
        return gac_error_set(&c->error, GAC_USAGE,
                             "verify takes the original and the repaired directory; see gac verify "
                             "--help");
    return compare(c, argv + optind);
}

const command cmd_verify = { "verify", "is a repaired checkpoint its original plus zeros?", help,
                             run };
