package integration

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestSecondCallOnABusyVolumeIsAborted(t *testing.T) {
	n := newNode(t)
	v := n.short("late")
	answer := n.waitingPublish(v)
	_, err := n.Node().NodePublishVolume(t.Context(), n.PublishRequest(v))
	wantStatus(t, err, codes.Aborted, v.ID())
	// The first call is none the worse for it.
	value := n.canary()
	n.configMap("late", map[string]string{"key": value})
	if err := n.answer(answer, soon); err != nil {
		t.Fatal(err)
	}
	n.wantContent(v, "key", value)
}

// waitingPublish begins a publish of a volume whose one ConfigMap is missing, and
// returns when the API server sees that the plugin follows it.
func (n *node) waitingPublish(v *harness.Volume) <-chan error {
	n.t.Helper()
	before := watches(n.t.Context(), n.t, "configmaps")
	answer := n.publishing(v)
	wantWatches(n.t, "configmaps", before+1)
	return answer
}

func TestUnpublishCancelsAWaitingPublish(t *testing.T) {
	n := newNode(t)
	before := watches(t.Context(), t, "configmaps")
	v := n.short("late")
	answer := n.waitingPublish(v)
	begin := time.Now()
	n.mustUnpublish(v)
	if took := time.Since(begin); took > soon {
		t.Errorf("the unpublish took %s", took)
	}
	wantStatus(t, n.answer(answer, soon), codes.Aborted)
	wantWatches(t, "configmaps", before)
	n.wantNothingLeft()
	// Nothing comes up late.
	n.configMap("late", map[string]string{"key": n.canary()})
	n.wantNothingLeft()
}

func TestKubeletThatGivesUpLeavesNothing(t *testing.T) {
	n := newNode(t)
	before := watches(t.Context(), t, "configmaps")
	v := n.short("late")
	if err := n.Prepare(v); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := contextWithTimeout(t, 300*time.Millisecond)
	defer cancel()
	_, err := n.Node().NodePublishVolume(ctx, n.PublishRequest(v))
	wantStatus(t, err, codes.DeadlineExceeded)
	wantWatches(t, "configmaps", before)
	n.wantMounts(0)
	n.mustUnpublish(v)
	n.wantNothingLeft()
}

func TestSIGTERMDrains(t *testing.T) {
	n := newNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	live, waiting := n.short("app"), n.short("late")
	n.mustPublish(live)
	answer := n.waitingPublish(waiting)

	if err := n.Process().Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, n.answer(answer, soon), codes.Unavailable)
	select {
	case <-n.Process().Done():
	case <-time.After(soon):
		t.Fatal("the plugin goes on, with no call left to answer")
	}
	if code := n.Process().ExitCode(); code != 0 {
		t.Errorf("exit status = %d, want 0", code)
	}
	for _, pattern := range []string{n.Socket(), filepath.Join(n.RegistrationDir(), "*")} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("left of the sockets: %v, %v", left, err)
		}
	}
	n.wantMounts(1)
	n.wantContent(live, "key", value)
}

func TestAnswersOfTheNodeService(t *testing.T) {
	n := newNode(t)
	n.configMap("app", map[string]string{"key": strings.Repeat("x", 10_000)})
	v := n.short("app")
	n.mustPublish(v)
	checkIdentity(t, n)
	checkStats(t, n, v)
}
