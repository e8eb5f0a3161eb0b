package main

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// init reads the wall clock's shift from a file that the test has mapped too, so that a write there sets the clock at once.
func init() {
	file, err := os.Open(os.Getenv("REFVOL_TEST_CLOCK"))
	if err != nil {
		panic(err)
	}
	defer file.Close()
	page, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	time.ShiftBy((*int64)(unsafe.Pointer(&page[0])))
}
