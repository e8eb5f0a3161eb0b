package integration

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// soon is how long a change may take on a busy machine, where the test is not about time.
const soon = time.Minute

const (
	// afterRestart is how long a change may take to show after a restart of the plugin.
	afterRestart = soon
	// afterCause is how soon a volume must be current once what kept it from that is gone.
	afterCause = soon
)

// hasCondition waits until the plugin's log says of a volume that it shows what it should,
// with an empty text, or that something with this text keeps it from that.
func (n *node) hasCondition(v *harness.Volume, text string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		problem, err := n.Problem(v)
		if err != nil {
			return err
		}
		if (problem != "") != (text != "") || !strings.Contains(problem, text) {
			return fmt.Errorf("the problem is %q, want %q", problem, text)
		}
		return nil
	})
}

func (n *node) deleteSecret(name string) {
	n.t.Helper()
	if err := shared.Client().CoreV1().Secrets(n.namespace).Delete(n.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
}
