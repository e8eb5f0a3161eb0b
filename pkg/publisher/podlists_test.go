package publisher

import (
	"errors"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// wantList compares how many lists of pods are kept, and how many volumes hold the one of a pod.
func (e *env) wantLists(lists int, r Request, users int) {
	e.Helper()
	l := &e.p.lists
	l.mu.Lock()
	defer l.mu.Unlock()
	got := 0
	if list := l.pods[r.Pod]; list != nil {
		got = list.users
	}
	if len(l.pods) != lists || got != users {
		e.Errorf("%d lists of pods are kept, %d volumes hold the pod's; want %d and %d", len(l.pods), got, lists, users)
	}
}

// listed returns the source that a volume shows.
func (e *env) listed(r Request) *volume.Projection {
	e.Helper()
	return e.p.lookup(r.VolumeID).resolved.Sources[0].Projection
}

// Volumes of a pod share what its spec lists, and one read of the pod, also one after another and after
// a restart. The list goes with the last of them.
func TestAPodsVolumesShareAList(t *testing.T) {
	inIdentities(t, func(e *env) {
		volumes := e.volumesOf("v", 10)
		other := e.volumesOf("other", 1)[0]
		shares := func() {
			t.Helper()
			for _, r := range volumes {
				if e.listed(r) != e.listed(volumes[0]) {
					t.Error("a volume has a list of its own")
				}
			}
			e.wantLists(2, volumes[0], len(volumes))
		}
		for range 2 {
			for _, r := range volumes {
				e.publish(r)
			}
			e.wantReads(1)
			e.publish(other)
			shares()
			e.restartUnread() // the kubelet publishes them again
			e.pods.takeReads()
		}
		for _, r := range append(volumes, other) {
			e.publish(r)
		}
		for i, r := range volumes {
			e.unpublish(r)
			if left := len(volumes) - i - 1; left > 0 {
				e.wantLists(2, r, left)
			}
		}
		e.wantLists(1, other, 1)
		e.pods.takeReads()
		e.publish(volumes[0])
		e.wantReads(1)
		e.unpublish(volumes[0])
		e.unpublish(other)
		e.wantNothing()
	})
}

// Another volume of a pod, or a container, is read when a volume needs it.
func TestAPodsListGrows(t *testing.T) {
	inIdentities(t, func(e *env) {
		e.objects.put(secret("db"), "password", "p")
		e.pods.set(podEnv(), nil)
		e.pods.name(configMap("app"), secret("db"))
		r := e.volumesOf("v", 1)[0]
		e.publish(r)
		more := e.inOnePod("v", 4, "sources", "[{volume: {name: native}}, {podEnv: {path: e, container: main}}]")[1:]
		e.publish(more[0])
		e.wantReads(2)
		e.publish(more[1])
		e.publish(more[2])
		e.wantReads(0)
		e.wantLists(1, r, 4)
	})
}

// A publish that fails, for whatever reason, holds no list of its pod.
func TestAFailedPublishHoldsNoList(t *testing.T) {
	inIdentities(t, func(e *env) {
		kept := e.volumesOf("v", 1)[0]
		e.publish(kept)
		shows := func(native, object string) {
			e.pods.show(native, volume.Source{Projection: &volume.Projection{Ref: configMap(object)}, Field: "spec.volumes[1].configMap"})
		}
		for native, fails := range map[string]func(){ // each names a volume that no list has yet
			"missing": func() { shows("missing", "none") },
			"mount":   func() { e.mounts.failAt("Create", errors.New("no memory")) },
			"unread":  func() { e.pods.failWith(errNoPod) },
			"none":    func() { e.pods.spoil(errors.New("no such thing")) },
		} {
			for _, r := range []Request{e.inOnePod("v", 2, "volume", native)[1], e.request("new", "volume", native)} {
				shows(native, "app")
				fails()
				if err := <-e.publishing(r); err == nil {
					t.Errorf("%s: %s was published", native, r.VolumeID)
				}
				e.wantLists(1, kept, 1)
			}
			e.mounts.failAt("Create", nil)
			e.pods.failWith(nil)
			e.pods.spoil(nil)
		}
		e.unpublish(kept)
		e.wantNothing()
	})
}
