package receipts

import (
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
	mark := func(b *testing.B, flags uint, mask uint64) {
		for _, dir := range dirs {
			v.must(v.group.mark("", flags, mask, dir))
		}
	}
	b.Run("Add and Stop", func(b *testing.B) {
		for b.Loop() {
			w := v.group.Watch(func([]string) {})
			for _, dir := range dirs {
				v.must(w.Add(dir, ""))
			}
			v.must(w.Stop(dirs...))
		}
	})
	b.Run("fanotify_mark", func(b *testing.B) {
		for b.Loop() {
			mark(b, unix.FAN_MARK_ADD, opens)
			b.StopTimer()
			mark(b, unix.FAN_MARK_REMOVE, opens)
			b.StartTimer()
		}
	})
	b.Run("key", func(b *testing.B) {
		for b.Loop() {
			for _, dir := range dirs {
				if _, err := key(dir); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
