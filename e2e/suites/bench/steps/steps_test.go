package steps

import "testing"

func TestStepOf(t *testing.T) {
	const worker, server = "github.com/refvol/refvol/pkg/publisher.(*worker).run", "net/http.(*conn).serve"
	for want, stack := range map[string][]string{
		"reconcile": {"github.com/refvol/refvol/pkg/publisher.(*vol).stage", worker},
		"replace": {
			"golang.org/x/sys/unix.Renameat", "github.com/refvol/refvol/pkg/writer.(*update).replace",
			"github.com/refvol/refvol/pkg/writer.(*Writer).write", worker,
		},
		"prune":   {"golang.org/x/sys/unix.Unlinkat", "github.com/refvol/refvol/pkg/writer.removeAll", "github.com/refvol/refvol/pkg/writer.Prune", worker},
		"decode":  {"encoding/json.Unmarshal", "github.com/refvol/refvol/pkg/manager.(*reflector).run", "net/http.(*body).Read"},
		"receive": {"net/http.(*http2clientConnReadLoop).run", "net/http.(*http2ClientConn).readLoop"},
		"":        {"runtime/pprof.writeHeap", "github.com/refvol/refvol/pkg/manager.Stats", server},
	} {
		if got := stepOf(stack); got != want {
			t.Errorf("stepOf(%q) = %q, want %q", stack, got, want)
		}
	}
	if got := stepOf([]string{"runtime.bgsweep"}); got != "" {
		t.Errorf("the runtime's own goroutine is in step %q", got)
	}
}

func TestCallOf(t *testing.T) {
	for want, stack := range map[string][]string{
		"openat": {"syscall.Syscall6", "golang.org/x/sys/unix.openat", "golang.org/x/sys/unix.Openat", "github.com/refvol/refvol/pkg/writer.openAt"},
		"read":   {"syscall.Syscall", "syscall.read", "syscall.Read", "os.(*File).Read"},
		"close":  {"syscall.Syscall", "syscall.Close", "internal/poll.(*FD).destroy", "internal/poll.(*FD).Close", "os.(*file).close"},
		"":       {"github.com/refvol/refvol/pkg/writer.openAt"},
	} {
		if got := callOf(stack); got != want {
			t.Errorf("callOf(%q) = %q, want %q", stack, got, want)
		}
	}
}
