package suite

import (
	"fmt"
	"os"
	"testing"
)

const (
	// leftOutVariable names a file, which gets a line for each test that is left out.
	leftOutVariable = "REFVOL_LEFT_OUT"
	// nodesOutOfReachVariable is set on a cluster whose nodes are somebody else's.
	nodesOutOfReachVariable = "REFVOL_NODES_OUT_OF_REACH"
)

// needsNodes leaves a test out where the nodes are somebody else's, and says there what the test does.
// A test whose subtests all need them calls it itself, for it would pass without them.
func needsNodes(t *testing.T, does string) {
	t.Helper()
	if os.Getenv(nodesOutOfReachVariable) != "" {
		leaveOut(t, "it needs the nodes: "+does)
	}
}

// leaveOut skips a test, and has the run list it.
func leaveOut(t *testing.T, why string) {
	t.Helper()
	if name := os.Getenv(leftOutVariable); name != "" {
		file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := fmt.Fprintf(file, "%s: %s\n", t.Name(), why); err != nil {
			t.Fatal(err)
		}
	}
	t.Skip("left out: " + why)
}
