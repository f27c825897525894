/* deepinfer inspect: the report of weights/inspect.h on standard output. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/commands.h"
#include "weights/inspect.h"

int di_command_inspect(const di_options *o) {
    di_error err = {0};
    di_inspect_options options = {
        .json = o->values[DI_OPT_JSON].flag,
        .tensors = o->values[DI_OPT_TENSORS].flag,
        .check = o->values[DI_OPT_CHECK].flag,
    };
    size_t faults = 0;
    if (!di_inspect(o->arguments[0], &options, stdout, &faults, &err)) {
        return di_cli_fail(&err);
    }
    return faults ? DI_EXIT_FAILED : DI_EXIT_WELL;
}
