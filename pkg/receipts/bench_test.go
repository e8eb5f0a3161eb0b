package receipts

import (
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkOpen is of an application's open and close, while a group reads.
func BenchmarkOpen(b *testing.B) {
	for name, prepare := range map[string]func(v *volume){
		"unwatched": func(*volume) {},
		"watched":   func(v *volume) { v.watch(v.open("1"), "") },
		"ignored": func(v *volume) {
			v.watch(v.open("1"), "")
			v.must(v.group.Ignore(int(v.open("1/key").Fd())))
		},
	} {
		b.Run(name, func(b *testing.B) {
			v := unlimited(b)
			v.dir("1", "key")
			v.runs()
			prepare(v)
			path := v.path + "/1/key"
			defer cpuTime(b)()
			for b.Loop() {
				if err := openOnce(unix.AT_FDCWD, path, unix.O_RDONLY); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMarks is of a thousand directories.
func BenchmarkMarks(b *testing.B) {
	v := unlimited(b)
	var dirs []int
	for i := range 1000 {
		dirs = append(dirs, int(v.dir(strconv.Itoa(i), "key").Fd()))
	}
	mark := func(flags uint, mask uint64) {
		for _, dir := range dirs {
			v.must(v.group.mark("", flags, mask, dir))
		}
	}
	b.Run("Add and Stop", func(b *testing.B) {
		defer cpuTime(b)()
		for b.Loop() {
			w := v.group.Watch(func([]string) {})
			for _, dir := range dirs {
				v.must(w.Add(dir, ""))
			}
			v.must(w.Stop(dirs...))
		}
	})
	b.Run("fanotify_mark and its removal", func(b *testing.B) {
		defer cpuTime(b)()
		for b.Loop() {
			mark(unix.FAN_MARK_ADD, opens)
			mark(unix.FAN_MARK_REMOVE, opens)
		}
	})
	b.Run("key", func(b *testing.B) {
		defer cpuTime(b)()
		for b.Loop() {
			for _, dir := range dirs {
				if _, err := key(dir); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

// cpuTime makes the benchmark tell the CPU time of its thread, which other processes of a busy machine don't change much.
func cpuTime(b *testing.B) (report func()) {
	runtime.LockOSThread()
	from := used(b, unix.RUSAGE_THREAD)
	return func() {
		b.ReportMetric(float64(used(b, unix.RUSAGE_THREAD)-from)/float64(b.N), "cpu-ns/op")
		runtime.UnlockOSThread()
	}
}
