package suite

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// liveLimit is how soon a container sees a change, on an idle machine.
	liveLimit = 250 * time.Millisecond
	// busyLimit is how soon a single change must be there on a busy one. It is less than a
	// resync takes on average, which would bring what a watch has missed.
	busyLimit = 20 * time.Second
)

// medianLimit is liveLimit for the median of several changes beside those that took a watch
// of this process so long.
func medianLimit(bare []time.Duration) time.Duration {
	return liveLimit + 10*harness.Median(bare)
}

// nativeTimeout is how long the kubelet may take to bring a change into a volume of
// its own: a sync of the pod each minute, and half of that by chance, with a margin.
const nativeTimeout = 4 * time.Minute

// native describes the kubelet's own volume of a ConfigMap.
func native(name, configMap string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}},
	}}
}

// Each of ten changes is visible in the container when the kubelet's own volume of the same
// ConfigMap in the same pod still has the old text. Their median takes under 250 ms, and
// more only as far as a watch that does nothing takes long, too.
//
// The time is taken in this process, from before the request that makes the change
// until the container's answer is here. So it includes the request and the way of the
// answer, and needs no clock that two machines share.
func TestChangeIsVisibleAtOnce(t *testing.T) {
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "change 0"})
	p := n.start(newPod("reader", refvol("live", attributes{"configMap": "settings"}), native("native", "settings")))
	live, kubelets := mountDir+"live/key", mountDir+"native/key"
	p.settle("settings", "key", kubelets)
	bare, err := harness.WatchBare(t.Context(), n.client, n.name, "settings")
	if err != nil {
		t.Fatal(err)
	}
	var all, bareAll []time.Duration
	asSoon := 0
	for i := 1; i <= 10; i++ {
		text := fmt.Sprintf("change %d", i)
		w := p.await(live, text, podTimeout, kubelets)
		before := time.Now()
		version := n.updateConfigMap("settings", object{"key": text}).ResourceVersion
		got := w.arrive()
		at, err := bare.Arrived(t.Context(), version)
		if err != nil {
			t.Fatal(err)
		}
		took, bareTook := got.at.Sub(before), at.Sub(before)
		all, bareAll = append(all, took), append(bareAll, bareTook)
		t.Logf("%s: in the container after %s, at a watch after %s; the native volume has %q",
			text, milliseconds(took), milliseconds(bareTook), got.Others[kubelets])
		if got.Failed > 0 {
			t.Errorf("%s: %d of %d reads failed: %s", text, got.Failed, got.Reads, got.Error)
		}
		if got.Others[kubelets] == text {
			asSoon++
		}
	}
	// The kubelet syncs a pod every 20 s or so (cluster.yaml). One of these changes may meet that.
	if asSoon > 1 {
		t.Errorf("the native volume had %d of 10 changes as soon", asSoon)
	}
	if median, limit := harness.Median(all), medianLimit(bareAll); median >= limit {
		t.Errorf("a change took %s, want %s at most", milliseconds(median), milliseconds(limit))
	}
}

// settle lets the sync pass that the kubelet makes soon after a pod has started. It
// refreshes native volumes, so it could meet a change of the test by chance.
func (p *pod) settle(configMap, key, file string) {
	p.t.Helper()
	p.updateConfigMap(configMap, object{key: "settling"})
	// It may be over already; then nothing comes in this time.
	_, _ = p.ask(p.t.Context(), p.Spec.Containers[0].Name, "await", file, "settling", "3s")
}

// How long a change takes into a refvol volume and into the kubelet's own, side by
// side. Only the order of the two is promised; the figures are for the reader.
func TestNativeVolumeIsLater(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "old"})
	p := n.start(newPod("reader", refvol("live", attributes{"configMap": "settings"}), native("native", "settings")))
	live, kubelets := mountDir+"live/key", mountDir+"native/key"
	p.settle("settings", "key", kubelets)
	// The first change may meet a sync of the kubelet. The next one is many seconds later.
	for _, text := range []string{"new", "newer"} {
		first := p.await(live, text, podTimeout, kubelets)
		second := p.await(kubelets, text, nativeTimeout)
		before := time.Now()
		n.updateConfigMap("settings", object{"key": text})
		got := first.arrive()
		t.Logf("the same change: refvol %s, native ConfigMap volume %.1f s",
			milliseconds(got.at.Sub(before)), second.arrive().at.Sub(before).Seconds())
		if got.Others[kubelets] != text {
			return
		}
	}
	t.Error("the native volume had two changes as soon")
}
