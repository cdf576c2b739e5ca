"""Tests of icefloe; a package so that worker processes can import what tests send them."""
