package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// withdrawal is what is killed while a volume loses what was revoked.
type withdrawal struct {
	*killing
	across *acrossNode
	// own and revoked are what the volume shows.
	own, revoked string
}

// TestKilledInAWithdrawal kills the plugin at the calls of a withdrawal, one by one, and starts
// it again. Meanwhile another object of the volume is missing, so no update can replace the
// withdrawal. What was revoked is gone in the end, and nothing else.
func TestKilledInAWithdrawal(t *testing.T) {
	t.Parallel()
	seed := harness.Seed(t)
	sum := newTally()
	t.Run("strategies", func(t *testing.T) {
		for i, strategy := range []string{"Atomic", "InPlace"} {
			t.Run(strategy, func(t *testing.T) {
				t.Parallel()
				w := newWithdrawal(t, strategy, sum)
				w.killAt(rand.New(rand.NewPCG(seed, uint64(i))))
			})
		}
	})
	t.Logf("%d kills at %d distinct points; by call: %v", sum.kills, len(sum.points), sum.names)
	switch {
	case t.Failed():
		return
	case sum.kills == 0:
		t.Error("never killed")
	}
	if harness.Scaled(true, false) {
		return
	}
	for _, name := range []string{"open_tree", "mount_setattr", "mkdirat", "linkat", "fsetxattr", "symlinkat", "renameat", "unlinkat", "ftruncate"} {
		if sum.names["withdraw "+name] == 0 {
			t.Errorf("never killed at: %s", name)
		}
	}
}

func newWithdrawal(t *testing.T, strategy string, sum *tally) *withdrawal {
	t.Helper()
	n := newNodeSupervisedAs(t, componentAccount(t, "cross-namespace"), nil, "--cross-namespace", "--resync-interval=1s")
	w := &withdrawal{
		killing: &killing{supervisedNode: n, shape: &shape{name: strategy, strategy: strategy}, tally: sum},
		across:  &acrossNode{node: n.node, source: newNamespace(t)},
		own:     n.canary(), revoked: n.canary(),
	}
	n.secret("own", map[string]string{"key": w.own})
	w.across.put("secret", "across", w.revoked)
	w.across.put("configmap", "across", n.canary())
	return w
}

// killAt kills at every call of a withdrawal. A refusal is confirmed for five seconds, so the
// short form kills once in the first half of the calls and once in the second.
func (w *withdrawal) killAt(random *rand.Rand) {
	w.t.Helper()
	calls, _ := w.run(supervise.CountOnly)
	half := len(calls) / 2
	for nth := harness.Scaled(1+random.IntN(half), 1); nth <= len(calls); nth += harness.Scaled(half, 1) {
		made, killed := w.run(supervise.KillAt(nth))
		if !killed {
			break
		}
		w.killed("withdraw", made)
	}
}

// run withdraws from a new volume. It returns the calls that the withdrawal made and whether
// the plugin was killed.
func (w *withdrawal) run(decide supervise.Decide) (calls []supervise.Call, killed bool) {
	w.t.Helper()
	w.configMap("own", map[string]string{"key": w.own})
	revoke := w.across.consent()
	v := w.across.mixed(w.shape.strategy)
	w.publishesSoon(v)
	w.wantContent(v, "across", w.revoked)
	if err := shared.Client().CoreV1().ConfigMaps(w.namespace).Delete(w.t.Context(), "own", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	w.hasCondition(v, "not found")

	w.Arm(decide)
	revoke()
	w.untilWithdrawnOrKilled(v)
	calls, killed = w.Disarm()
	if killed {
		w.restart()
		w.untilWithdrawnOrKilled(v)
	}
	w.wantContent(v, "own", w.own)
	w.wantContent(v, "deep/own", w.own)
	w.wantContent(v, "own.env", "OWN="+w.own+"\n")
	w.becomesTidy(v)
	w.wantMounts(1)
	w.wantBareDisk()
	w.end(v)
	return calls, killed
}

// untilWithdrawnOrKilled waits until nothing of the volume shows what was revoked.
func (w *withdrawal) untilWithdrawnOrKilled(v *harness.Volume) {
	w.t.Helper()
	harness.Eventually(w.t, withdrawn, func() error {
		if w.ended() {
			return nil
		}
		for _, path := range []string{"across", "mixed.env"} {
			if got, err := w.content(v, path); got != "" || err != nil && !os.IsNotExist(err) {
				return fmt.Errorf("%s still holds %d bytes: %w", path, len(got), err)
			}
		}
		return w.pruned(v)
	})
}
