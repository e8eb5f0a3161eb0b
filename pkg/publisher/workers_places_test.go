package publisher

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// largeOf publishes volumes of the pod "hostile" whose renders are large.
func (e *env) largeOf(volumes int) []Request {
	e.Helper()
	all := e.inOnePod("hostile", volumes, "sources", e.large("any").Attributes["sources"])
	for i := range all {
		all[i].VolumeID = fmt.Sprint("large-", i) // others of the pod have its name
		all[i].Target = strings.Replace(all[i].Target, "/settings-", "/large-", 1)
		e.makeTarget(all[i])
		e.publish(all[i])
	}
	return all
}

// fillWith changes what large volumes show, and returns their content then.
func (e *env) fillWith(letter string) (content string) {
	value := strings.Repeat(letter, 400<<10)
	e.objects.put(configMap("large"), "A", value)
	return "A=" + value + "\n"
}

// wantFreeLarge fails the test unless so many places for large renders are free.
func (e *env) wantFreeLarge(want int) {
	e.Helper()
	l := &e.p.renders.large
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.free != want {
		e.Errorf("%d places are free, want %d", l.free, want)
	}
}

// Volumes of a pod that hangs, or rests, keep few places at the render gate from others.
func TestPlacesOfAPodThatHangs(t *testing.T) {
	inBubble(t, func(e *env) {
		hostile := e.largeOf(6)
		release := e.writes.hangAt("A=" + strings.Repeat("y", 400<<10) + "\n")
		content := e.fillWith("y")
		after(10 * time.Second)
		e.wantFreeLarge(largeRenders - podReconciles)
		release()
		e.settle()
		e.wantFreeLarge(largeRenders)
		after(time.Minute)
		for _, r := range hostile {
			e.wantFiles(r, "e", content)
		}
	})
}

// A place that is given while the pod rests goes to others.
func TestPlaceOfAPodThatRests(t *testing.T) {
	inBubble(t, func(e *env) {
		large := e.largeOf(1)[0]
		e.volumesFor("hostile", 1)
		free := e.fill()
		content := e.fillWith("y")
		release := e.writes.hangAt("this hangs")
		e.objects.put(configMap("hostile"), "a", "this hangs")
		after(10 * time.Second)
		release()
		e.settle()
		free()
		e.settle()
		e.wantFreeLarge(largeRenders)
		after(2 * firstRest)
		e.wantFiles(large, "e", content)

		free = e.fill()
		content = e.fillWith("z")
		e.settle()
		free()
		e.settle()
		e.wantFiles(large, "e", content)
	})
}

// What only removes files keeps no place.
func TestNoPlaceForAPrune(t *testing.T) {
	inBubble(t, func(e *env) {
		e.objects.put(configMap("app"), "a", "1")
		r := e.large("v1")
		r.Attributes["sources"] = strings.Replace(r.Attributes["sources"], "[{env", "[{configMap: {name: app}}, {env", 1)
		e.publish(r)
		e.fillWith("y")
		e.settle()
		e.objects.remove(configMap("app")) // then no update can be made
		release := e.writes.hangPrunes()
		after(10 * time.Second)
		e.wantFreeLarge(largeRenders)
		release()
		after(2 * firstRest)
	})
}

// A place that is given while a prune hangs goes to others.
func TestPlaceOfAPruneThatHangs(t *testing.T) {
	inBubble(t, func(e *env) {
		large := e.largeOf(1)[0]
		e.fillWith("w")
		synctest.Wait()
		release := e.writes.hangPrunes()
		free := e.fill()
		content := e.fillWith("y") // it waits for a place
		after(10 * time.Second)
		free()
		e.settle()
		e.wantFreeLarge(largeRenders)
		release()
		after(2 * firstRest)
		e.wantFiles(large, "e", content)
	})
}

// A place that was given to a volume goes to others when the volume is unpublished before a worker
// takes it up.
func TestPlaceOfAnUnpublishedVolume(t *testing.T) {
	inStoppedBubble(t, func(o *Options) { o.Workers = 1 }, func(e *env) {
		e.run()
		large := e.large("large")
		e.publish(large)
		e.volumesFor("hostile", 1)
		free := e.fill()
		e.fillWith("y")
		e.settle() // it waits for a place
		release := e.writes.hangAt("this hangs")
		e.objects.put(configMap("hostile"), "a", "this hangs")
		synctest.Wait()
		free()
		synctest.Wait()
		e.wantFreeLarge(largeRenders - 1)
		e.unpublish(large)
		e.wantFreeLarge(largeRenders)
		release()
		after(2 * firstRest)
	})
}
