/* deepinfer inspect: the report of weights/inspect.h, or the table of cache/layout.h, on standard
 * output. */
#include <stdio.h>

#include "cache/layout.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "weights/inspect.h"

static int print_state(const char *folder) {
    di_error err = {0};
    di_config config;
    if (!di_config_read(&config, folder, &err)) {
        return di_cli_fail(&err);
    }
    di_state_table_print(stdout, &config);
    return DI_EXIT_WELL;
}

int di_command_inspect(const di_options *o) {
    di_error err = {0};
    di_inspect_options options = {
        .json = o->values[DI_OPT_JSON].flag,
        .tensors = o->values[DI_OPT_TENSORS].flag,
        .check = o->values[DI_OPT_CHECK].flag,
    };
    if (o->values[DI_OPT_STATE].flag) {
        if (options.json || options.tensors || options.check) {
            di_fail(&err, DI_ERR_ARGUMENT,
                    "inspect: --state prints its table only: --json, --tensors and --check cannot "
                    "be given with it");
            di_cli_fail(&err);
            return DI_EXIT_USAGE;
        }
        return print_state(o->arguments[0]);
    }
    size_t faults = 0;
    if (!di_inspect(o->arguments[0], &options, stdout, &faults, &err)) {
        return di_cli_fail(&err);
    }
    return faults ? DI_EXIT_FAILED : DI_EXIT_WELL;
}
