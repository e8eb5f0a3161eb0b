package suite

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/stage"
)

const (
	// oneSpread is the spread of the pod of TestRestartOfOneContainer. momentAhead is how far away its moment is when the object changes:
	// the crash and the looks at the variables take a few seconds.
	oneSpread   = 45 * time.Second
	momentAhead = 30 * time.Second
	// messageFile is new and empty for each start of a container, and writable for each user.
	messageFile = "/dev/termination-log"
)

// TestRestartOfOneContainer: a container that crashes between a change and the pod's moment starts with the new variable, and the other one
// keeps the old one. At the moment all containers restart, and both have the new one.
func TestRestartOfOneContainer(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.needsPolicies()
	n.createConfigMap("settings", object{"mode": "0"})
	spec := withVariable("pair")
	spec.Annotations["refvol.dev/spread"] = oneSpread.String()
	crashing := newContainer("crashing", nil)
	crashing.Args, crashing.Env = []string{"obey", messageFile}, spec.Spec.Containers[0].Env
	spec.Spec.Containers = append(spec.Spec.Containers, crashing)
	p := n.start(spec)

	// A machine can be so busy that the moment comes too early: then the test starts anew, with another value.
	var late error
	for try := range 3 {
		before, after := map[string]string{"MODE": fmt.Sprint(try)}, map[string]string{"MODE": fmt.Sprint(try + 1)}
		moment := p.awaitMomentAhead()
		n.updateConfigMap("settings", object{"mode": after["MODE"]})
		p.crash(t, crashing.Name)
		eventually(t, podTimeout, "the crashed container has the new variable", func(ctx context.Context) error {
			return p.containerHas(ctx, crashing.Name, after)
		})
		ctx, cancel := context.WithDeadline(t.Context(), moment)
		late = poll(ctx, func(ctx context.Context) error { return p.hasVariables(ctx, before) })
		cancel()
		eventually(t, restartTimeout, "both containers have the new variable", func(ctx context.Context) error {
			if err := p.hasVariables(ctx, after); err != nil {
				return err
			}
			return p.containerHas(ctx, crashing.Name, after)
		})
		p.awaitStart(t, moment)
		if late == nil {
			break
		}
		t.Logf("try %d: the container that didn't crash, before the moment %s: %v", try, moment, late)
	}
	if late != nil {
		t.Errorf("the container that didn't crash did not keep its variable until the pod's moment: %v", late)
	}
	if p.restarts(t) == 0 { // it is still the same pod
		t.Error("the container that didn't crash has not restarted")
	}
}

// awaitMomentAhead waits until the pod's next moment is far enough away, and returns it.
func (p *pod) awaitMomentAhead() (moment time.Time) {
	p.t.Helper()
	eventually(p.t, 2*oneSpread, "a moment far enough away", func(context.Context) error {
		now := time.Now()
		moment = stage.NextMoment(p.UID, oneSpread, now)
		if ahead := moment.Sub(now); ahead < momentAhead {
			return fmt.Errorf("it is in %s", ahead)
		}
		return nil
	})
	return moment
}

// crash has the program of a container fail. The command that causes it may be cut off by that.
func (p *pod) crash(t *testing.T, container string) {
	t.Helper()
	if err := p.stream(t.Context(), container, io.Discard, "write", messageFile, "bad"); err != nil {
		t.Logf("crash %s: %v", container, err)
	}
}

// awaitStart waits until the status says that all containers have started again, none of them before the moment.
func (p *pod) awaitStart(t *testing.T, moment time.Time) {
	t.Helper()
	eventually(t, podTimeout, "a restart of all containers at the pod's moment", func(context.Context) error {
		p.awaitReady()
		for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			// The status has whole seconds.
			if r := c.State.Running; c.RestartCount == 0 || r == nil || r.StartedAt.Time.Before(moment.Truncate(time.Second)) {
				return fmt.Errorf("container %s: %d restarts, %+v, want a start after %s", c.Name, c.RestartCount, c.State, moment)
			}
		}
		return nil
	})
}
