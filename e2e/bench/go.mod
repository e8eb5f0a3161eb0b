module github.com/refvol/refvol/e2e/bench

go 1.26.0

replace (
	github.com/refvol/refvol => ../../
	github.com/refvol/refvol/e2e => ../
)

require golang.org/x/sys v0.49.0
