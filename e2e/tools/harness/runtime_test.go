package harness

import (
	"maps"
	"testing"
)

const dump = `SIGQUIT: quit
PC=0x1 m=0 sigcode=0

goroutine 0 gp=0x1 m=0 mp=0x1 [idle]:
runtime.futex(0x1, 0x80)
	/usr/local/go/src/runtime/sys_linux_amd64.s:557 +0x21

goroutine 1 gp=0x2 m=nil [chan receive, 1 minutes]:
runtime.gopark(0x1?)
	/usr/local/go/src/runtime/proc.go:460 +0xce
main.main()
	/src/main.go:10 +0x1

goroutine 33 gp=0x3 m=nil [select]:
github.com/refvol/refvol/pkg/manager.(*run).follow(0x1, {0x2, 0x3})
	/src/pkg/manager/follow.go:20 +0x1
github.com/refvol/refvol/pkg/manager.(*item).startLocked.func1()
	/src/pkg/manager/item.go:106 +0x1
sync.(*WaitGroup).Go.func1()
	/usr/local/go/src/sync/waitgroup.go:239 +0x1
runtime.goexit({})
	/usr/local/go/src/runtime/asm_amd64.s:1693 +0x1
created by sync.(*WaitGroup).Go in goroutine 7
	/usr/local/go/src/sync/waitgroup.go:237 +0x1

goroutine 34 gp=0x4 m=3 mp=0x2 [running]:
	goroutine running on other thread; stack unavailable
created by main.serve in goroutine 1
	/src/serve.go:7 +0x1

goroutine 35 gp=0x5 m=nil [select]:
main.wait(...)
	/src/serve.go:20
...additional frames elided...
created by main.other in goroutine 1
	/src/serve.go:8 +0x1

rax    0x0
`

func TestEntryFunctions(t *testing.T) {
	want := map[string]int{"runtime.futex": 1, "main.main": 1, "github.com/refvol/refvol/pkg/manager.(*item).startLocked.func1": 1, "main.serve": 1, "main.wait": 1}
	if got := entryFunctions([]byte(dump)); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
