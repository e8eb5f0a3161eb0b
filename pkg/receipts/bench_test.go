package receipts

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkOpen measures an application's open and close while a group reads.
func BenchmarkOpen(b *testing.B) {
	for name, prepare := range map[string]func(v *volume){
		"unwatched": func(*volume) {},
		"watched":   func(v *volume) { v.watch() },
		"ignored": func(v *volume) {
			v.watch()
			v.must(v.ignore(int(v.open("1/key").Fd())))
		},
	} {
		b.Run(name, func(b *testing.B) {
			v := newVolume(b)
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

// BenchmarkID measures the cost of a new file.
func BenchmarkID(b *testing.B) {
	v := newVolume(b)
	dir := int(v.dir("1", "key").Fd())
	defer cpuTime(b)()
	for b.Loop() {
		if _, err := v.group.ID(dir, "key"); err != nil {
			b.Fatal(err)
		}
	}
}

// cpuTime makes the benchmark report the CPU time of its thread, which other processes of a busy machine affect little.
func cpuTime(b *testing.B) (report func()) {
	runtime.LockOSThread()
	from := used(b, unix.RUSAGE_THREAD)
	return func() {
		b.ReportMetric(float64(used(b, unix.RUSAGE_THREAD)-from)/float64(b.N), "cpu-ns/op")
		runtime.UnlockOSThread()
	}
}
