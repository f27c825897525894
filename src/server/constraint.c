/* What an answer must be, from the request to the engine. */
#include "server/prepare.h"

bool di_prepare_constraint(const di_request *r, di_request_params *p, di_error *err) {
    (void)p;
    switch (r->inference.constraint) {
    case DI_CONSTRAINT_NONE:
    case DI_CONSTRAINT_TOOL_CALL:
    case DI_CONSTRAINT_TOOL_CALL_REQUIRED:
        return true;
    case DI_CONSTRAINT_JSON:
    case DI_CONSTRAINT_REGEX:
        break;
    }
    return di_fail(err, DI_ERR_UNSUPPORTED, "response_format is not enforced by this version");
}
