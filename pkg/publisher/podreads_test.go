package publisher

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/volume"
)

// inIdentities is inBubble without and with the rights of the node. The pods have a volume that
// shows the ConfigMap "app".
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

// volumesOf returns requests for many volumes of one pod, which its spec must be read for.
func (e *env) volumesOf(id string, n int) []Request { return e.inOnePod(id, n, "volume", "native") }

// publishingAll starts all publishes.
func (e *env) publishingAll(requests []Request) []<-chan error {
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

func (e *env) wantSuccess(answers []<-chan error) {
	e.Helper()
	for _, answer := range answers {
		if err := <-answer; err != nil {
			e.Fatal(err)
		}
	}
}

// However many volumes a pod has, publishes at the same time read it once: of new volumes, and
// of those that an earlier process has mounted.
func TestAPodsVolumesShareARead(t *testing.T) {
	inIdentities(t, func(e *env) {
		volumes := e.volumesOf("v", 100)
		for range 2 {
			e.pods.setSlow(30 * time.Second)
			answers := e.publishingAll(volumes)
			after(20 * time.Second)
			for _, answer := range answers {
				e.wantWaiting(answer)
			}
			e.wantSuccess(answers)
			e.wantReads(1)
			e.pods.setSlow(0)
			e.restartUnread()
			e.pods.takeReads()
		}
	})
}

// A node's start reads many pods: few at once, but all.
func TestReadsOfPodsAreBounded(t *testing.T) {
	inIdentities(t, func(e *env) {
		const pods, each = 100, 2
		var volumes []Request
		for i := range pods {
			volumes = append(volumes, e.volumesOf(fmt.Sprint("v", i), each)...)
		}
		for range 2 {
			e.pods.setSlow(time.Second)
			answers := e.publishingAll(volumes)
			after(time.Second / 2)
			for left := pods; left > 0; left -= maxAsking {
				e.wantReads(min(left, maxAsking))
				after(time.Second)
			}
			e.wantSuccess(answers)
			e.pods.setSlow(0)
			e.restartUnread()
			e.pods.takeReads()
		}
	})
}

// After a restart the plugin reads pods of mounted volumes too. Both kinds of reads have one bound.
func TestReadsOfPodsAreBoundedAfterARestart(t *testing.T) {
	inIdentities(t, func(e *env) {
		const pods = 3 * maxAsking
		request := func(name string, i int) Request { return e.request(fmt.Sprint(name, i), "volume", "native") }
		for i := range pods {
			e.publish(request("mounted", i))
		}
		e.pods.setSlow(time.Second)
		e.pods.takeReads()
		e.restart()
		after(3 * time.Second / 2) // one has been read, and allows others
		var answers []<-chan error
		for i := range pods {
			answers = append(answers, e.publishing(request("new", i)))
		}
		e.settle()
		e.wantReads(1 + maxAsking)
		for range 2 * pods / maxAsking {
			after(time.Second)
			if got := len(strings.Fields(e.pods.takeReads())); got > maxAsking {
				t.Errorf("%d reads of pods in a second", got)
			}
		}
		e.wantSuccess(answers)
		e.objects.put(configMap("app"), "a", "2")
		e.settle()
		for i := range pods {
			e.wantFiles(request("mounted", i), "a", "2")
		}
	})
}

// A publish that waits for the reads of other pods fails at its deadline, or goes on once one of
// them has ended. A place is given back by an unpublish too.
func TestAPublishWaitsForReadsOfPods(t *testing.T) {
	inIdentities(t, func(e *env) {
		e.pods.setHang(true)
		var hanging []Request
		for i := range maxAsking {
			hanging = append(hanging, e.volumesOf(fmt.Sprint("v", i), 1)...)
		}
		answers := e.publishingAll(hanging)
		e.wantWaiting(answers[0])
		goesOn := e.publishingAll(e.volumesOf("next", 2))
		e.wantWaiting(goesOn[0])
		e.wantReads(maxAsking)
		e.pods.setHang(false)
		e.unpublish(hanging[0])
		e.wantReason(<-answers[0], ReasonBusy, "")
		e.wantSuccess(goesOn)
		e.wantReads(1)
		for _, answer := range answers[1:] {
			e.wantReason(<-answer, ReasonUnavailable, "volume: context deadline exceeded")
		}

		e.pods.setSlow(2 * testWait) // they keep their places beyond the deadline
		answers = e.publishingAll(hanging)
		e.wantWaiting(answers[0])
		begin := time.Now()
		for _, answer := range e.publishingAll(e.volumesOf("late", 2)) {
			e.wantReason(<-answer, ReasonUnavailable, "volume: waited for reads of pods for other volumes: context deadline exceeded")
		}
		if waited := time.Since(begin); waited != testWait {
			t.Errorf("it waited for %s, want %s", waited, testWait)
		}
		for _, answer := range answers {
			<-answer
		}
	})
}

// Refused pods keep no place from other pods' reads. While those have all places, a pod stays
// refused, and its publish fails with that.
func TestARefusedPodAndTheBound(t *testing.T) {
	asNode(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		var refused []<-chan error
		for i := range 2 * maxAsking {
			r := e.request(fmt.Sprint("refused", i))
			e.pods.refuse(r)
			refused = append(refused, e.publishing(r))
		}
		after(time.Second)
		e.pods.takeReads()
		e.pods.setSlow(2 * testWait)
		var slow []<-chan error
		for i := range 2 * maxAsking {
			slow = append(slow, e.publishing(e.request(fmt.Sprint("v", i))))
		}
		after(10 * time.Second)
		if reads := e.pods.takeReads(); strings.Count(reads, "pod-v") < maxAsking-1 || len(strings.Fields(reads)) != maxAsking {
			t.Errorf("read %q", reads)
		}
		e.pods.setSlow(0)
		for i, answer := range refused {
			if err := <-answer; ReasonOf(err) != ReasonForbidden {
				t.Errorf("publish %d: %v", i, err)
			}
		}
		for _, answer := range slow {
			<-answer
		}
	})
}

// The API server says when to ask again. Reads then pause for as long, one tries, and the publishes
// that wait go on; at their deadline they fail with what it said.
func TestABusyAPIServerIsReadLater(t *testing.T) {
	inIdentities(t, func(e *env) {
		busy := func(seconds int) { e.pods.failWith(apierrors.NewTooManyRequests("busy", seconds)) }
		busy(20)
		const pods = 5
		var answers []<-chan error
		for i := range pods {
			answers = append(answers, e.publishingAll(e.volumesOf(fmt.Sprint("v", i), 1))...)
		}
		after(19 * time.Second)
		e.wantReads(pods)
		after(20 * time.Second) // half of Retry-After may come on top
		if reads := len(strings.Fields(e.pods.takeReads())); reads < 1 || reads > 2 {
			t.Errorf("%d reads after the pause, want one that tries", reads)
		}
		e.pods.failWith(nil)
		e.wantSuccess(answers)

		busy(60)
		begin := time.Now()
		e.wantReason(<-e.publishing(e.volumesOf("late", 1)[0]), ReasonUnavailable, "volume: busy")
		if waited := time.Since(begin); waited != testWait {
			t.Errorf("it waited for %s, want %s", waited, testWait)
		}
	})
}
