package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// objectName is the name of the i-th of many ConfigMaps, and of its key.
func objectName(i int) string { return fmt.Sprintf("many-%d", i) }

// inParallel calls f for each number below n, a few at a time, and joins the errors.
func inParallel(n, atOnce int, f func(int) error) error {
	errs := make([]error, n)
	var running sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// setMany creates the ConfigMaps, or updates them.
func (n *proxied) setMany(count int, value string) {
	n.t.Helper()
	err := inParallel(count, 8, func(i int) error {
		_, err := n.tryConfigMap(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: objectName(i)}, Data: map[string]string{objectName(i): value}})
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) publishAll(volumes []*harness.Volume) {
	n.t.Helper()
	if err := inParallel(len(volumes), len(volumes), func(i int) error { return n.Publish(n.t.Context(), volumes[i]) }); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) unpublishAll(volumes []*harness.Volume) {
	n.t.Helper()
	n.unpublishEach(volumes)
	n.wantNothingLeft()
}

// unpublishEach unpublishes volumes, but not necessarily all of the node.
func (n *node) unpublishEach(volumes []*harness.Volume) {
	n.t.Helper()
	if err := inParallel(len(volumes), len(volumes), func(i int) error { return n.Unpublish(n.t.Context(), volumes[i]) }); err != nil {
		n.t.Fatal(err)
	}
}

// TestManyPodsStartAtOnce has 40 pods with 12 volumes each (30 in the long form) start together, at an API
// server whose watches don't begin with the state, so that each object takes a list
// too: a client that limits its own rate would be late. What the volumes themselves take
// is measured by as many others of the same objects, which take no request.
func TestManyPodsStartAtOnce(t *testing.T) {
	const pods = 40
	volumesEach := harness.Scaled(12, 30)
	objects := harness.Scaled(300, pods*volumesEach)
	n := newProxied(t, faultproxy.Options{NoWatchList: true})
	n.setMany(objects, "value")
	first, second := n.volumesOfPods(pods, volumesEach, objects), n.volumesOfPods(pods, volumesEach, objects)
	begin := time.Now()
	n.publishAll(first)
	took := time.Since(begin)
	harness.Eventually(t, soon, func() error {
		open := n.proxy.Watches()
		for o, count := range open {
			if count != 1 {
				return fmt.Errorf("%d watches of %v, want one", count, o)
			}
		}
		if len(open) != objects {
			return fmt.Errorf("%d objects are watched, want %d", len(open), objects)
		}
		return nil
	})
	begin = time.Now()
	n.publishAll(second)
	known := time.Since(begin)
	t.Logf("%d volumes of %d objects published in %s, and as many others of the same objects in %s", len(first), objects, took, known)
	if limit := 30*time.Second + 3*known; took > limit {
		t.Errorf("want %s at most", limit)
	}
	volumes := append(first, second...)
	n.wantMounts(len(volumes))
	n.unpublishAll(volumes)
}

// volumesOfPods returns volumes of one object each, so many of each pod.
func (n *proxied) volumesOfPods(pods, each, objects int) []*harness.Volume {
	volumes := make([]*harness.Volume, 0, pods*each)
	for range pods {
		pod := n.short("")
		for i := range each {
			v := *pod
			v.Name = fmt.Sprint("volume-", i)
			v.Attributes = map[string]string{"configMap": objectName(len(volumes) % objects)}
			volumes = append(volumes, &v)
		}
	}
	return volumes
}

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
	var hanging []*harness.Volume
	var answers []<-chan error
	for first := 0; first < objects; first += each {
		var sources strings.Builder
		for i := range each {
			fmt.Fprintf(&sources, "- configMap: {name: %s}\n", objectName(first+i))
		}
		v := n.volume(map[string]string{"sources": sources.String()})
		hanging = append(hanging, v)
		v.Pod, v.UID, v.Name = hanging[0].Pod, hanging[0].UID, fmt.Sprint("volume-", first)
		answers = append(answers, n.publishing(v))
	}
	last, since := 0, time.Now()
	harness.Eventually(t, soon, func() error { // until for a moment no other object is asked for
		if asked := len(roundsOf(n.requests())); asked != last {
			last, since = asked, time.Now()
		}
		if last < 16 || time.Since(since) < 500*time.Millisecond {
			return fmt.Errorf("%d objects have been asked for, the last just now, want 16 at least", last)
		}
		return nil
	})
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
