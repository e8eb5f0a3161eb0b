package publisher

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/volume"
)

// inIdentities is like inBubble, with and without the node's rights. The pods have a volume that shows the ConfigMap "app".
func inIdentities(t *testing.T, test func(e *env)) {
	for name, nodeRights := range map[string]bool{"plugin": false, "node": true} {
		t.Run(name, func(t *testing.T) {
			inStoppedBubble(t, func(o *Options) { o.NodeRights = nodeRights }, func(e *env) {
				e.objects.put(configMap("app"), "a", "1")
				e.pods.name(configMap("app"))
				e.pods.show("native", volume.Source{Projection: &volume.Projection{Ref: configMap("app")}, Field: "spec.volumes[0].configMap"})
				e.run()
				test(e)
			})
		})
	}
}

// volumesOf returns requests for many volumes of one pod whose spec must be read.
func (e *env) volumesOf(id string, n int) []binding.Request {
	return e.inOnePod(id, n, "volume", "native")
}

// publishingAll starts all publishes.
func (e *env) publishingAll(requests []binding.Request) []<-chan error {
	var answers []<-chan error
	for _, r := range requests {
		answers = append(answers, e.publishing(r))
	}
	return answers
}

// wantReads compares how many reads of pods were sent since the last call.
func (e *env) wantReads(want int) {
	e.Helper()
	if got := len(strings.Fields(e.pods.takeReads())); got != want {
		e.Errorf("%d reads of pods, want %d", got, want)
	}
}

// However many volumes a pod has, concurrent publishes read it once, and so does a restart.
func TestAPodsVolumesShareARead(t *testing.T) {
	inIdentities(t, func(e *env) {
		volumes := e.volumesOf("v", 100)
		e.pods.setSlow(30 * time.Second)
		answers := e.publishingAll(volumes)
		after(20 * time.Second)
		for _, answer := range answers {
			e.wantWaiting(answer)
		}
		e.wantDone(answers...)
		e.wantReads(1)
		e.restart()
		e.wantDone(e.publishingAll(volumes)...) // mounted ones wait for nothing
		after(time.Minute)
		e.wantReads(1)
		e.update(configMap("app"), "a", "2")
		e.wantFilesOf(volumes, "a", "2")
	})
}

// A node's start reads many pods: few at the same time, those for which a publish waits first, and in the end all.
func TestReadsOfPodsAreBounded(t *testing.T) {
	inIdentities(t, func(e *env) {
		const pods, each = 100, 2
		var mounted, volumes []binding.Request
		for i := range 40 {
			mounted = append(mounted, e.request(fmt.Sprint("mounted", i), "volume", "native"))
			e.publish(mounted[i])
		}
		for i := range pods {
			volumes = append(volumes, e.volumesOf(fmt.Sprint("v", i), each)...)
		}
		e.pods.setSlow(time.Second)
		e.pods.takeReads()
		e.restart()
		after(time.Second / 2)
		e.wantReads(12) // of the mounted volumes; publishes have four places more
		answers := e.publishingAll(volumes)
		after(7 * time.Second)
		reads := e.pods.takeReads()
		e.wantBetween("%d reads of a second each in 7 s", len(strings.Fields(reads)), 0, 7*16)
		if first := strings.Count(reads, "pod-v"); first < pods*9/10 {
			t.Errorf("%d reads for publishes in 7 s, want most of %d", first, pods)
		}
		e.wantDone(answers...)
		after(5 * time.Second)
		e.update(configMap("app"), "a", "2")
		e.wantFilesOf(mounted, "a", "2")
	})
}
