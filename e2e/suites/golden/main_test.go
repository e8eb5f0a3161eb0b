// Package golden_test proves that this build takes over the volumes of earlier ones. testdata has a volume of each kind, as
// the build that was the first to have that kind has left it on a node: files, links, modes, owners and extended attributes.
// None of them ever changes: that would be a format which earlier plugins have not written.
package golden_test

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

var update = flag.Bool("update", false, "write the tree of each volume in testdata that has none yet")

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil { // the tests mostly wait; -parallel beats it
		panic(err)
	}
	os.Exit(harness.Main(m, func(context.Context) (func() error, error) { return func() error { return nil }, nil }))
}
