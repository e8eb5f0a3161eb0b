package publisher

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/volume"
)

// TestManyFirstAnswers: after a restart the first answers about many objects of a volume bring few reconciles.
func TestManyFirstAnswers(t *testing.T) {
	inBubble(t, func(e *env) {
		const count = 200
		name := func(i int) string { return fmt.Sprintf("app-%03d", i) }
		var sources strings.Builder
		for i := range count {
			e.objects.put(configMap(name(i)), name(i), "1")
			fmt.Fprintf(&sources, "- configMap: {name: %s}\n", name(i))
		}
		r := e.request("v", "sources", sources.String())
		e.publish(r)
		var files []string
		for i := range count {
			e.objects.put(configMap(name(i)), name(i), "2")
			e.objects.failWith(configMap(name(i)), &manager.PendingError{Ref: configMap(name(i))})
			files = append(files, name(i), "2")
		}
		e.restart()
		e.settle()
		e.objects.takeReads(configMap(name(0)))
		for i := range count {
			after(time.Millisecond)
			e.objects.failWith(configMap(name(i)), nil)
		}
		n := len(e.objects.takeReads(configMap(name(0))))
		after(time.Second)
		e.wantFiles(r, files...)
		if n > count/10 {
			t.Errorf("%d answers brought %d reconciles", count, n)
		}
	})
}

// TestTheLastFirstAnswer brings its reconcile at once.
func TestTheLastFirstAnswer(t *testing.T) {
	inBubble(t, func(e *env) {
		refs := []volume.Ref{configMap("a"), configMap("b")}
		for _, ref := range refs {
			e.objects.put(ref, ref.Name, "1")
			e.objects.failWith(ref, &manager.PendingError{Ref: ref})
		}
		r := e.request("v", "sources", "[{configMap: {name: a}}, {configMap: {name: b}}]")
		done := e.publishing(r)
		synctest.Wait()
		e.objects.takeReads(refs[0])
		e.objects.failWith(refs[0], nil)
		synctest.Wait()
		if n := len(e.objects.takeReads(refs[0])); n > 0 {
			t.Errorf("the first of two answers brought %d reconciles", n)
		}
		begin := time.Now()
		e.objects.failWith(refs[1], nil)
		if err := <-done; err != nil || time.Since(begin) > 0 {
			t.Errorf("published after %s: %v", time.Since(begin), err)
		}
	})
}
