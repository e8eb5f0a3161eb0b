package integration

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// runStatus runs `refvol-plugin status` against the node's plugin.
// No kubelet has registered the plugin here, which each answer says; that line is left out, and the exit status is that of all else.
func (n *node) runStatus() (stdout, stderr string, exit int) {
	n.t.Helper()
	stdout, stderr, exit = harness.Run(n.t, shared.Plugin, "status", "--status-address="+n.statusAddress())
	const notRegistered = "The plugin on node-1 is not ready: registration: the kubelet has not registered the driver yet\n"
	if exit == 1 && stderr == "Error: status: plugins that are not ready: 1\n" {
		stderr, exit = "", 0
	}
	return strings.Replace(stdout, notRegistered, "", 1), stderr, exit
}

// tells waits until the command ends with this exit status, and says these texts, on standard output and on standard error.
func (n *node) tells(exit int, out, errOut string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		if gotOut, gotErr, got := n.runStatus(); got != exit || !strings.Contains(gotOut, out) || !strings.Contains(gotErr, errOut) {
			return fmt.Errorf("exit status %d, %s\n%s\nwant %d, %s\n%s", got, gotErr, gotOut, exit, errOut, out)
		}
		return nil
	})
}

// TestStatus: the command tells of a volume without its object and of a publish that was refused, until they are mended. A plugin that can't
// be asked is not taken for one that is well.
func TestStatus(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.tells(0, "0 volumes on 1 node, 0 abnormal\n", "")
	n.value("app")
	n.published("app")
	n.removeObject("configMap", "app")
	n.tells(1, fmt.Sprintf(`ConfigMap "%s/app"`, n.namespace), "status: volumes that are abnormal: 1 of 1")
	n.value("app")
	bad := n.volume(map[string]string{"configMap": "app", "updatePolicy": "pinned"})
	wantStatus(t, n.Publish(t.Context(), bad), codes.InvalidArgument, "updatePolicy")
	const text = `InvalidArgument: updatePolicy: Unsupported value: "pinned"`
	n.tells(1, "volume settings of pod "+n.namespace+"/"+bad.Pod+": "+text, "publishes that failed in the last ten minutes: 1")
	n.mustUnpublish(bad)
	n.tells(0, " on 1 node, 0 abnormal\n", "")
	n.mustKill()
	n.tells(2, "", "connection refused: run this in the pod of a plugin whose --status-address is ")
}
