package suite

import (
	"fmt"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
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

// needsKubernetes leaves a test out on clusters older than a version such as 1.36, and says what the test
// needs of that.
func (n *namespace) needsKubernetes(t *testing.T, least, what string) {
	t.Helper()
	if v := n.version(t); v.LessThan(version.MustParseGeneric(least)) {
		leaveOut(t, fmt.Sprintf("Kubernetes %s has no %s, which %s has", v, what, least))
	}
}

// version returns the API server's.
func (n *namespace) version(t *testing.T) *version.Version {
	t.Helper()
	info, err := n.client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	return version.MustParseGeneric(info.GitVersion)
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
