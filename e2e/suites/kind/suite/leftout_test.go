package suite

import (
	"fmt"
	"os"
	"testing"
)

// leftOutVariable is set on a cluster whose nodes are somebody else's. It names a file, which gets a
// line for each test that is left out there.
const leftOutVariable = "REFVOL_LEFT_OUT"

// needsNodes leaves a test out where the nodes are somebody else's, and says there what the test does.
// A test whose subtests all need them calls it itself, for it would pass without them.
func needsNodes(t *testing.T, does string) {
	t.Helper()
	name := os.Getenv(leftOutVariable)
	if name == "" {
		return
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := fmt.Fprintf(file, "%s: %s\n", t.Name(), does); err != nil {
		t.Fatal(err)
	}
	t.Skipf("left out on this cluster: %s", does)
}
