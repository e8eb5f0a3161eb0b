package publisher

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// volumesFor publishes volumes of one pod, which show an object named like the pod.
func (e *env) volumesFor(pod string, volumes int) (requests []Request) {
	e.Helper()
	e.objects.put(configMap(pod), "a", "1")
	for i := range volumes {
		r := e.request(fmt.Sprint(pod, "-", i), "configMap", pod)
		r.Pod.Name, r.Pod.UID = pod, types.UID("uid-"+pod)
		r.Target = fmt.Sprintf("%s/pods/%s/volumes/kubernetes.io~csi/v%d/mount", e.opts.KubeletDir, r.Pod.UID, i)
		e.makeTarget(r)
		e.publish(r)
		requests = append(requests, r)
	}
	return requests
}

// wantWorkers fails the test unless the Publisher has so many workers: each takes one of the volumes of
// so many pods whose writes hang.
func (e *env) wantWorkers(want int) {
	e.Helper()
	e.objects.put(configMap("app"), "a", "1")
	for i := range 2 * want {
		e.publish(e.request(fmt.Sprint("w", i)))
	}
	release := e.writes.hangAt("all hang")
	defer release()
	e.objects.put(configMap("app"), "a", "all hang")
	synctest.Wait()
	if n := e.writes.howManyHang(); n != want {
		e.Errorf("%d workers, want %d", n, want)
	}
}

// Pods whose writes hang hold up no other pod, and each has few threads.
func TestHangingWrites(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.request("v1")
		e.publish(r)
		const pods, volumes = 3, 20
		var all []Request
		for pod := range pods {
			all = append(all, e.volumesFor(fmt.Sprint("hostile-", pod), volumes)...)
		}
		release := e.writes.hangAt("this hangs")
		for pod := range pods {
			e.objects.put(configMap(fmt.Sprint("hostile-", pod)), "a", "this hangs")
		}
		synctest.Wait()
		e.objects.put(configMap("app"), "a", "2")
		after((pods + 1) * hangTime)
		e.settle()
		e.wantFiles(r, "a", "2")
		if n, most := e.writes.howManyHang(), pods*defaultWorkers(); n < pods || n > most {
			t.Errorf("%d writes hang, want %d to %d", n, pods, most)
		}
		after(time.Minute)
		e.objects.put(configMap("app"), "a", "3")
		e.settle()
		e.wantFiles(r, "a", "3")

		release()
		after(maxRest)
		e.settle()
		for _, r := range all {
			e.wantFiles(r, "a", "this hangs")
		}
		e.p.mu.Lock()
		if n := len(e.p.hung); n > 0 {
			t.Errorf("%d pods that hung are remembered", n)
		}
		e.p.mu.Unlock()
		e.wantWorkers(defaultWorkers())
	})
}

// A pod rests four times as long as it hung, and other pods don't.
func TestRestAfterAHang(t *testing.T) {
	const hung = 10 * time.Second
	inBubble(t, func(e *env) {
		r := e.volumesFor("hostile", 1)[0]
		release := e.writes.hangAt("this hangs")
		e.objects.put(configMap("hostile"), "a", "this hangs")
		after(hangTime + hung)
		release()
		e.settle()
		e.wantFiles(r, "a", "this hangs")
		e.objects.put(configMap("hostile"), "a", "after the rest")
		after(restFactor*hung - time.Second)
		e.wantFiles(r, "a", "this hangs")
		after(time.Second)
		e.settle()
		e.wantFiles(r, "a", "after the rest")
	})
}

// What ends within hangTime is no hang, and its pod does not rest.
func TestASlowWriteIsNoHang(t *testing.T) {
	inBubble(t, func(e *env) {
		r := e.volumesFor("slow", 1)[0]
		release := e.writes.hangAt("this is slow")
		e.objects.put(configMap("slow"), "a", "this is slow")
		after(hangTime - time.Millisecond)
		release()
		e.objects.put(configMap("slow"), "a", "2")
		e.settle()
		e.wantFiles(r, "a", "2")
		e.wantWorkers(defaultWorkers())
	})
}
