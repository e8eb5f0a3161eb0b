package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"syscall"
)

// TraceHeap is what PluginOptions.Env needs for LiveHeap: the Go runtime says in the log what each collection found,
// and collects often, so that the last one is of now.
func TraceHeap() []string { return []string{"GODEBUG=gctrace=1", "GOGC=10"} }

// collection is one line of the runtime's: gc 7 @0.4s 2%: ..., 4->5->2 MB, ...; the third number is what was in use,
// in MiB, rounded down.
var collection = regexp.MustCompile(`(?m)^gc (\d+) @.* \d+->\d+->(\d+) MB, `)

// LiveHeap returns how many garbage collections the running process has made, and what the last one found in use, in
// whole MiB, rounded down. Before the first one it returns zeros. It needs TraceHeap.
func (p *Plugin) LiveHeap() (collections, mib int, err error) {
	log, err := p.runLog()
	all := collection.FindAllSubmatch(log[max(0, len(log)-1<<20):], -1)
	if err != nil || len(all) == 0 {
		return 0, 0, err
	}
	last := all[len(all)-1]
	collections, countErr := strconv.Atoi(string(last[1]))
	mib, sizeErr := strconv.Atoi(string(last[2]))
	return collections, mib, errors.Join(countErr, sizeErr)
}

var (
	goroutine = regexp.MustCompile(`(?m)^goroutine \d+ .*:\n((?:[^\n].*\n)+)`)
	frame     = regexp.MustCompile(`(?m)^(\S+)\(.*\)$`)
	createdBy = regexp.MustCompile(`(?m)^created by (\S+)`)
	starter   = regexp.MustCompile(`^(sync\.|golang\.org/x/sync/errgroup\.|runtime\.goexit$)`)
)

// entryFunctions counts the goroutines in a stack dump by the function that each began with, but for those that only start others, such as
// sync.WaitGroup.Go's.
func entryFunctions(dump []byte) map[string]int {
	count := map[string]int{}
	for _, stack := range goroutine.FindAllSubmatch(dump, -1) {
		entry := ""
		for _, f := range frame.FindAllSubmatch(stack[1], -1) {
			if name := string(f[1]); !starter.MatchString(name) {
				entry = name
			}
		}
		if by := createdBy.FindSubmatch(stack[1]); entry == "" && by != nil { // it runs, so it has no stack
			entry = string(by[1])
		}
		count[entry]++
	}
	return count
}

// Quit ends the process with SIGQUIT and counts the goroutines in the stack dump that the Go runtime then writes, by
// the function that each began with.
func (p *Plugin) Quit(ctx context.Context) (goroutines map[string]int, err error) {
	before, err := p.runLog()
	if err != nil {
		return nil, err
	}
	if err := p.stop(ctx, syscall.SIGQUIT); err != nil {
		return nil, err
	}
	log, err := p.runLog()
	if err != nil {
		return nil, err
	}
	count := entryFunctions(log[len(before):])
	if len(count) == 0 {
		return nil, fmt.Errorf("the plugin wrote no stack dump on SIGQUIT\n%s", p.LogTail())
	}
	return count, nil
}

// runLog returns what this run of the plugin has logged.
func (p *Plugin) runLog() ([]byte, error) {
	log, err := os.ReadFile(p.LogPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return log[min(p.logged, len(log)):], err
}
