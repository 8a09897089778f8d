/* main() of every test that has none of its own: a library's member apart, which only these link. */
#include "tests/rp-test.h"

int
main(int argc, char **argv)
{
    (void)argc;
    return rp_test_run(argv[0]);
}
