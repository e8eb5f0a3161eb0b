package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/util/exec"

	"github.com/refvol/refvol/internal/leak"
)

// status runs `refvol-plugin status` in the plugin's pod on a node, as kubectl exec does.
func (c *cluster) status(ctx context.Context, node string, args ...string) (out string, exit int, err error) {
	plugin, err := c.plugin(ctx, node)
	if err != nil || plugin == nil {
		return "", 0, fmt.Errorf("plugin of %s: %v, %w", node, plugin, err)
	}
	var stdout bytes.Buffer
	err = c.exec(ctx, plugin, plugin.Spec.Containers[0].Name, &stdout, append([]string{"/refvol-plugin", "status"}, args...))
	if leaked := leak.Check("the status of "+node, fmt.Sprint(stdout.String(), err)); leaked != nil {
		return "", 0, leaked
	}
	var ended exec.CodeExitError
	if errors.As(err, &ended) {
		return stdout.String(), ended.Code, nil
	}
	return stdout.String(), 0, err
}

// awaitStatus waits until the command ends with a status on a node, and prints a line with all words.
func (n *namespace) awaitStatus(node string, exit int, words ...string) {
	n.t.Helper()
	eventually(n.t, podTimeout, fmt.Sprintf("status of %s: %d, with %q", node, exit, words), func(ctx context.Context) error {
		out, got, err := n.status(ctx, node)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if got == exit && containsAll(line, words) {
				return nil
			}
		}
		return fmt.Errorf("exit status %d\n%s", got, out)
	})
}

// Two nodes, of which one has a pod whose volume is well, and the other one that waits for a Secret. The
// command in the plugins' pods tells them apart, until the Secret is there. It runs alone, as other tests'
// volumes are told too.
func TestStatusOfNodes(t *testing.T) {
	n := newNamespace(t)
	well, ill := n.worker(t), takeNode(t)
	n.createSecret("login", object{"user": canary("admin")})
	spec := newPod("reader", refvol("login", attributes{"secret": "login"}))
	spec.Spec.NodeName = well
	n.start(spec)
	waiting := n.create(onNode(newPod("waiting", refvol("late", attributes{"secret": "late"})), ill))

	n.awaitStatus(ill, 1, "no ", n.name+"/waiting", "late", "RefNotFound", "secret/late@-", "not found")
	n.awaitStatus(well, 0, "yes ", n.name+"/reader", "login", "Current", "secret/login@")

	n.createSecret("late", object{"user": canary("late")})
	waiting.awaitReady()
	n.awaitStatus(ill, 0, "yes ", n.name+"/waiting", "Current", "secret/late@")
}
