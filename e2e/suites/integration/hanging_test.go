package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestHangingRequestsHoldUpNoOtherPodForLong has one pod name objects whose requests never get an answer, and publishes
// volumes of other pods meanwhile: each of 16 slots is free again after a second.
func TestHangingRequestsHoldUpNoOtherPodForLong(t *testing.T) {
	const objects, each, publishes = 96, 12, 9
	// within is how much longer a publish may take beside the requests that hang.
	const within = objects*time.Second/16 + 2*time.Second
	n := newProxied(t, faultproxy.Options{})
	n.setMany(objects, "value")
	without := n.publishOthers("before", publishes)

	n.forgetRequests()
	n.proxy.InjectFor(faultproxy.NoHeaders, func(r faultproxy.Request) bool {
		return strings.HasPrefix(r.Name, "many-")
	})
	hanging := n.volumesOf(objects, each)
	var answers []<-chan error
	for i, v := range hanging {
		v.Pod, v.UID, v.Name = hanging[0].Pod, hanging[0].UID, fmt.Sprint("volume-", i)
		answers = append(answers, n.publishing(v))
	}
	n.untilNoneIsNew(16)
	with := n.publishOthers("beside", publishes)
	asked := len(roundsOf(n.requests()))
	t.Logf("a publish took %v, and beside requests for %d objects that hang %v", without, asked, with)
	if most := slices.Max(with); most > 3*slices.Max(without)+within {
		t.Errorf("a publish took %s beside requests that hang, and %s without", most, slices.Max(without))
	}

	n.unpublishAll(hanging)
	for _, answer := range answers {
		wantStatus(t, n.answer(answer, soon), codes.Aborted)
	}
	harness.Eventually(t, soon, func() error { return noWatches(n.proxy) })
}

// publishOthers publishes volumes of new objects and pods, one after the other, and returns
// how long each took.
func (n *proxied) publishOthers(name string, count int) []time.Duration {
	n.t.Helper()
	var took []time.Duration
	for i := range count {
		object := fmt.Sprintf("%s-%d", name, i)
		n.configMap(object, map[string]string{"key": object})
		v := n.short(object)
		begin := time.Now()
		n.mustPublish(v)
		took = append(took, time.Since(begin))
		n.wantContent(v, "key", object)
		n.mustUnpublish(v)
	}
	slices.Sort(took)
	return took
}

// untilNoneIsNew waits until so many objects have been asked for, and for a moment no other.
func (n *proxied) untilNoneIsNew(least int) {
	n.t.Helper()
	const moment = 500 * time.Millisecond
	last, since := 0, time.Now()
	harness.Eventually(n.t, soon, func() error {
		if asked := len(roundsOf(n.requests())); asked != last {
			last, since = asked, time.Now()
		}
		if last < least || time.Since(since) < moment {
			return fmt.Errorf("%d objects have been asked for, the last just now, want %d at least", last, least)
		}
		return nil
	})
}
