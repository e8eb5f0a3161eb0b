package integration

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/status"
)

// isTold is what the status must say of a volume: the condition, a text in its reason, whether it is abnormal,
// and of each object its state.
type isTold struct {
	volume    *harness.Volume
	condition string
	abnormal  bool
	reason    string
	states    string
}

// tells waits until the status has these volumes, in this order, and no other.
func (n *node) tells(want ...isTold) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		report, err := n.report()
		if err != nil {
			return err
		}
		same := len(report.Volumes) == len(want)
		for i := 0; same && i < len(want); i++ {
			v, w := &report.Volumes[i], &want[i]
			var states []string
			for _, o := range v.Objects {
				states = append(states, o.State)
			}
			same = v.VolumeID == w.volume.ID() && v.Name == w.volume.Name && v.Pod == status.Pod{Namespace: w.volume.Namespace, Name: w.volume.Pod, UID: w.volume.UID} &&
				v.Condition == w.condition && v.Abnormal == w.abnormal && strings.Join(states, " ") == w.states &&
				strings.Contains(v.Reason, w.reason) && (v.Reason == "") == (w.reason == "")
		}
		if !same {
			return fmt.Errorf("the status is\n%+v\nwant\n%+v", report.Volumes, want)
		}
		return nil
	})
}

// runStatus runs `refvol-plugin status` against the node's plugin.
// No kubelet has registered the plugin here, which each answer says; that line is left out, and the exit status is that of all else.
func (n *node) runStatus(args ...string) (stdout, stderr string, exit int) {
	n.t.Helper()
	stdout, stderr, exit = harness.Run(n.t, shared.plugin, append([]string{"status", "--status-address=" + n.statusAddress()}, args...)...)
	const notRegistered = "The plugin on node-1 is not ready: registration: the kubelet has not registered the driver yet\n"
	if exit == 1 && stderr == "Error: status: plugins that are not ready: 1\n" {
		stderr, exit = "", 0
	}
	return strings.Replace(stdout, notRegistered, "", 1), stderr, exit
}

// TestStatusTellsFaults: a volume of each condition is told with its reason, the worst first, without a value.
// When the faults are mended, the command's exit status says so.
func TestStatusTellsFaults(t *testing.T) {
	t.Parallel()
	n := newAcrossNode(t, "--max-volume-size=64Ki")
	for _, name := range []string{"app", "deleted", "large"} {
		n.value(name)
	}
	refused, revoke := n.consented()
	current, pinned := n.short("app"), n.volume(map[string]string{"configMap": "app", "updatePolicy": "Pinned"})
	deleted, large := n.short("deleted"), n.short("large")
	for _, v := range []*harness.Volume{current, pinned, deleted, large} {
		n.mustPublish(v)
	}
	n.isWell(7)

	bad := n.volume(map[string]string{"configMap": "app", "updatePolicy": "pinned"})
	wantStatus(t, n.Publish(t.Context(), bad), codes.InvalidArgument, "updatePolicy")
	const text = `InvalidArgument: updatePolicy: Unsupported value: "pinned"`
	if out, errOut, exit := n.runStatus(); exit != 1 || !strings.Contains(out, "volume settings of pod "+n.namespace+"/"+bad.Pod+": "+text) || !strings.Contains(errOut, "publishes that failed in the last ten minutes: 1") {
		t.Errorf("a refused publish: exit status %d, %s\n%s", exit, errOut, out)
	}
	n.mustUnpublish(bad)
	if report, err := n.report(); err != nil || len(report.Refused) > 0 {
		t.Errorf("after the unpublish: %+v, %v", report.Refused, err)
	}

	late, keyless := n.short("late"), n.volume(map[string]string{"configMap": "app", "items": "[{key: other, path: other}]"})
	waiting := []<-chan error{n.publishing(late), n.publishing(keyless)}
	n.removeObject("configMap", "deleted")
	n.configMap("large", map[string]string{"key": n.canary() + strings.Repeat("x", 100<<10)})
	revoke()
	n.tells(
		isTold{refused, "RefForbidden", true, fmt.Sprintf(`Secret "%s/db"`, n.source), "present unknown"},
		isTold{large, "VolumeUpdateFailed", true, "64", "present"},
		isTold{deleted, "RefDeleted", true, fmt.Sprintf(`ConfigMap "%s/deleted"`, n.namespace), "absent"},
		isTold{keyless, "RefKeyNotFound", true, "other", "present"},
		isTold{late, "RefNotFound", true, fmt.Sprintf(`ConfigMap "%s/late"`, n.namespace), "absent"},
		isTold{current, "Current", false, "", "present"},
		isTold{pinned, "Pinned", false, "", "present"},
	)
	out, errOut, exit := n.runStatus("-o", "wide")
	if exit != 1 || !strings.Contains(errOut, "status: volumes that are abnormal: 5 of 7") || !strings.Contains(out, "RefKeyNotFound") {
		t.Errorf("exit status %d, %s\n%s", exit, errOut, out)
	}

	n.value("late")
	n.configMap("app", map[string]string{"key": n.canary(), "other": n.canary()})
	n.value("deleted")
	n.value("large")
	n.mustUnpublish(refused)
	for _, publish := range waiting {
		if err := n.answer(publish, soon); err != nil {
			t.Fatal(err)
		}
	}
	n.isWell(8)
}

// isWell waits until the command says so, in so many lines.
func (n *node) isWell(lines int) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		if out, errOut, exit := n.runStatus(); exit != 0 || errOut != "" || strings.Count(out, "\n") != lines {
			return fmt.Errorf("exit status %d, %s\n%s", exit, errOut, out)
		}
		return nil
	})
}

// TestStatusWithoutPlugin: who can't be asked is not taken for one that is well.
func TestStatusWithoutPlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.isWell(1) // it knows its rights a moment after its start
	if out, _, _ := n.runStatus(); out != "0 volumes on 1 node, 0 abnormal\n" {
		t.Errorf("without a volume: %s", out)
	}
	n.mustKill()
	out, errOut, exit := n.runStatus()
	if exit != 2 || out != "" || !strings.Contains(errOut, "connection refused: run this in the pod of a plugin whose --status-address is ") {
		t.Errorf("exit status %d, %q, %q", exit, out, errOut)
	}
}
